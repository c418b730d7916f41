"""The page's frame, and the only place in which text becomes HTML: names, errors and logs are foreign.

What a function here returns is markup; what it takes is text, unless the argument says ``inner``. The page's own policy
forbids all that is not in the file: no script but the one below, whose hash it names, no picture, no address.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape

from gangrun.display.text import block, clean
from gangrun.planning.accounts import TimeUse

# Each class with its colour on white and on black. Training is green, starting is blue, recovering is orange.
COLORS = {
    TimeUse.USEFUL: ("#2f855a", "#48a873"),
    TimeUse.SAVING: ("#8cc63f", "#a6d75b"),
    TimeUse.LOST: ("#c53030", "#f06a6a"),
    TimeUse.QUEUE: ("#8a94a3", "#7d8896"),
    TimeUse.START_UP: ("#2b5fb3", "#5b8def"),
    TimeUse.PREFLIGHT: ("#3876b3", "#7fb8ec"),
    TimeUse.LOADING: ("#167d89", "#3dc2d1"),
    TimeUse.COMPILE: ("#93b7e8", "#aecbf5"),
    TimeUse.NOTICING: ("#b7791f", "#e0a33c"),
    TimeUse.STOPPING: ("#dd6b20", "#f59150"),
    TimeUse.FENCING: ("#8b4513", "#c98a5a"),
    TimeUse.WAITING: ("#e3b505", "#f3d04f"),
    TimeUse.IDLE_SPARE: ("#c9d3df", "#46525f"),
    TimeUse.UNUSABLE: ("#6b2fa0", "#b583e6"),
}
_OPENS = (
    "addEventListener('beforeprint',function(){"
    "document.querySelectorAll('details:not([open])').forEach(function(d){d.open=true;d.dataset.folded=''})});"
    "addEventListener('afterprint',function(){"
    "document.querySelectorAll('details[data-folded]').forEach(function(d){d.open=false;delete d.dataset.folded})});"
)
_STYLE = """
:root{color-scheme:light dark;--back:#fff;--ink:#1a202c;--dim:#525f70;--line:#d5dbe3;--panel:#f6f8fa;--link:#1d4ed8;
--good:#22693f;--bad:#b42318;--warn:#8a5a00;--curve:#1d4ed8;--mark:#b42318;--on:#fff;COLORS_LIGHT}
@media (prefers-color-scheme:dark){:root{--back:#11161d;--ink:#e6eaf0;--dim:#a3aebd;--line:#333d4a;--panel:#1a212b;
--link:#8ab4ff;--good:#63d08d;--bad:#ff8a80;--warn:#f3c04f;--curve:#8ab4ff;--mark:#ff8a80;--on:#10151c;COLORS_DARK}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1120px;margin:0 auto;padding:24px 20px 60px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:19px;margin:38px 0 6px;padding-top:14px;border-top:1px solid var(--line)}
h3{font-size:15px;margin:18px 0 4px}
p{margin:4px 0 10px;max-width:76ch;overflow-wrap:anywhere}.dim,figcaption{color:var(--dim);font-size:13.5px}
.state{display:inline-block;padding:1px 10px;border:1.5px solid;border-radius:12px;font-weight:600;font-size:13px}
.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}
.lead{font-size:16.5px;margin-top:10px}
dl.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(132px,1fr));gap:10px;margin:18px 0 0}
dl.figures div{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:9px 13px}
dl.figures dt{color:var(--dim);font-size:13px}dl.figures dd{margin:0;font-size:20px;font-weight:600}
dl.figures dd small{display:block;font-size:12.5px;font-weight:400;color:var(--dim)}
figure{margin:10px 0}.wide{overflow-x:auto}.wide:focus-visible{outline:2px solid var(--link)}
svg{display:block;width:100%;min-width:720px;height:auto;font:11.5px system-ui,sans-serif}
svg text{fill:var(--dim)}svg .strong{fill:var(--ink)}svg .on{fill:var(--on);font-weight:600}
svg .grid{stroke:var(--line)}svg .mark{stroke:var(--mark);stroke-dasharray:3 3}svg .curve{stroke:var(--curve);fill:none;
stroke-width:1.6;stroke-linejoin:round}svg .dot{fill:var(--curve)}svg .free{fill:var(--panel)}
table{border-collapse:collapse;font-size:13.5px;width:100%;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--dim);padding:2px 0 6px}
th,td{text-align:left;padding:4px 12px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}
td.text{overflow-wrap:anywhere;min-width:6.5em}td.long{overflow-wrap:anywhere;min-width:18em}
thead th{color:var(--dim);font-weight:600;white-space:nowrap}tfoot th,tfoot td{font-weight:700;border-bottom:0}
th.n,td.n{text-align:right;white-space:nowrap}
i.k{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:7px;vertical-align:-1px;
background:var(--c)}
ul.keys{list-style:none;padding:0;margin:6px 0;display:flex;flex-wrap:wrap;gap:2px 18px;font-size:13.5px}
details{border:1px solid var(--line);border-radius:8px;margin:8px 0;padding:0 14px}
summary{cursor:pointer;padding:8px 0;font-weight:600;overflow-wrap:anywhere}
summary:focus-visible{outline:2px solid var(--link)}
summary span{font-weight:400;color:var(--dim)}
pre{background:var(--panel);border:1px solid var(--line);border-radius:6px;padding:10px;overflow-x:auto;
font-size:12.5px;line-height:1.4;
white-space:pre-wrap;overflow-wrap:anywhere}
ol.story{margin:4px 0 12px;padding-left:0;list-style:none}ol.story li{margin:7px 0;overflow-wrap:anywhere}
ol.story time{color:var(--dim);font-variant-numeric:tabular-nums}
ol.story small{display:block;color:var(--dim);font-size:13px}
footer{margin-top:40px;color:var(--dim);font-size:13px}
COLOR_RULES
@media print{:root{color-scheme:light;--back:#fff;--ink:#000;--dim:#444;--line:#ccc;--panel:#fff;--good:#22693f;
--bad:#b42318;--warn:#8a5a00;--curve:#1d4ed8;--mark:#b42318;--on:#fff;COLORS_LIGHT}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
main{max-width:none;padding:0}svg{min-width:0}.wide{overflow:visible}
figure,tr,svg{break-inside:avoid}h2,h3,summary{break-after:avoid}table{font-size:10.5px}th,td{padding-right:7px}
details{border:0;padding:0}details::details-content{content-visibility:visible;display:block;block-size:auto}}
"""


def text(value: object) -> str:
    """Foreign text, on one line."""
    return escape(clean(value))


def pre(value: object) -> str:
    """Foreign text of many lines."""
    return f"<pre>{escape(block(value))}</pre>"


def key_of(use: TimeUse) -> str:
    """The CSS class of a class of time."""
    return f"u{list(TimeUse).index(use)}"


def swatch(use: TimeUse) -> str:
    """Its colour as a square, and its name."""
    return f'<i class="k {key_of(use)}" aria-hidden="true"></i>{text(use.value)}'


def keys(uses: Iterable[TimeUse]) -> str:
    """The legend of a picture."""
    return f'<ul class="keys">{"".join(f"<li>{swatch(use)}</li>" for use in uses)}</ul>'


def figure(inner: str, label: str, caption: str = "") -> str:
    """A picture or a table that may be wider than the screen: it scrolls, by keys too."""
    told = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    return (
        f'<figure><div class="wide" tabindex="0" role="region" aria-label="{text(label)}">{inner}</div>{told}</figure>'
    )


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, inner: Sequence[int] = (),
    words: Sequence[int] = (), long: Sequence[int] = (), foot: Sequence[str] = (),
) -> str:  # fmt: skip
    """Cells are text; those of the columns in ``inner`` are markup already. All but ``words`` and ``long`` are numbers.

    The first cell of a row is its header.
    """

    def cells(row: Sequence[str], tag: str, scope: str) -> str:
        told = []
        for k, cell in enumerate(row):
            kind = "long" if k in long else "text" if k in words else "n"
            name, of = (tag, f' scope="{scope}"') if tag == "th" else ("th", ' scope="row"') if k == 0 else ("td", "")
            what = cell if k in inner and tag == "td" else text(cell)
            told.append(f'<{name}{of} class="{kind}">{what}</{name}>')
        return f"<tr>{''.join(told)}</tr>"

    body = "".join(cells(row, "td", "") for row in rows)
    feet = f"<tfoot>{cells(foot, 'td', '')}</tfoot>" if foot else ""
    named = f"<caption>{text(caption)}</caption>" if caption else ""
    return f"<table>{named}<thead>{cells(head, 'th', 'col')}</thead><tbody>{body}</tbody>{feet}</table>"


def folded(summary: str, dim: str, inner: str) -> str:
    """A part that is opened by hand, and by printing."""
    more = f" <span>{text(dim)}</span>" if dim else ""
    return f"<details><summary>{text(summary)}{more}</summary>{inner}</details>\n"


def document(title: str, inner: str) -> str:
    """The whole file."""
    digest = base64.b64encode(hashlib.sha256(_OPENS.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    light, dark = (";".join(f"--{key_of(use)}:{COLORS[use][shade]}" for use in TimeUse) for shade in (0, 1))
    rules = "\n".join(f".{key_of(use)}{{fill:var(--{key_of(use)});--c:var(--{key_of(use)})}}" for use in TimeUse)
    style = _STYLE.replace("COLORS_LIGHT", light).replace("COLORS_DARK", dark).replace("COLOR_RULES", rules)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{text(title)}</title>\n'
        f"<style>{style}</style>\n</head>\n<body>\n<main>\n{inner}\n</main>\n<script>{_OPENS}</script>\n</body>\n</html>\n"
    )
