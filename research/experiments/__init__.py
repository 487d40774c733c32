"""The paper's tables and figures, planted effects and sensitivity, on the paper's data or on a user's."""

from .ablation import ABLATION
from .classify import CLASSIFY
from .evolving import CONTINUAL, CUMULATIVE
from .experiment import Experiment, Outcome
from .federated_rounds import FEDERATED_ROUNDS
from .imbalance import IMBALANCE
from .molecules import MOLECULES
from .planted import PLANTED
from .rounds import ROUNDS
from .runner import run
from .sensitivity import SENSITIVITY
from .settings import Settings, read_config
from .without_effect import WITHOUT_EFFECT

__all__ = ["EXPERIMENTS", "Experiment", "Outcome", "Settings", "read_config", "run"]

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        *(CLASSIFY, IMBALANCE, CONTINUAL, CUMULATIVE, MOLECULES, ABLATION, ROUNDS),
        *(PLANTED, SENSITIVITY, WITHOUT_EFFECT, FEDERATED_ROUNDS),
    )
}
