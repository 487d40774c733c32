"""Pictures of embeddings and of experiments (extra ``report``)."""
