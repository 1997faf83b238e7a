"""How pages look: light and dark, from a phone to a desktop, with nothing to load."""

from __future__ import annotations

from prime_p2p.monitor.charts import NARROW

COLOURS = 8  # that a page tells apart: the classes c0 to c7; ``quiet`` and ``ink`` are there besides

_LIGHT = (
    "--page:#f6f7f9;--card:#fff;--ink:#16191d;--soft:#5b6570;--line:#e3e7ec;--base:#aeb7c1;--good:#14764f;--bad:#b3261e;"
    "--quiet:#b4bcc6;--c0:#2563c9;--c1:#d2521f;--c2:#1b8a63;--c3:#8650c8;--c4:#b58300;--c5:#1192a8;--c6:#c23f83;"
    "--c7:#6d7786;"
)
_DARK = (
    "--page:#101316;--card:#191d22;--ink:#eceff2;--soft:#9aa5b1;--line:#2a3037;--base:#59636e;--good:#5fd0a0;"
    "--bad:#ff8a80;--quiet:#565f6a;--c0:#6aa5ff;--c1:#ff8f5e;--c2:#4fcf9c;--c3:#b98cf5;--c4:#e0b541;--c5:#4cc7dc;"
    "--c6:#f07fb5;--c7:#9aa5b1;"
)
_SERIES = "".join(
    f".{name}{{--s:var(--{name})}}" for name in ("quiet", "ink", *(f"c{place}" for place in range(COLOURS)))
)
STYLE = (
    f":root{{color-scheme:light dark;{_LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}{_SERIES}"
    """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:960px;margin:0 auto;padding:28px 16px 48px}
h1{font-size:26px;line-height:1.2;margin:0;overflow-wrap:anywhere}h2{font-size:17px;margin:0}
header p,.note{color:var(--soft);margin:4px 0 0}.note{font-size:13.5px}
section,.tile,.notices{background:var(--card);border:1px solid var(--line);border-radius:10px}
section{padding:18px 18px 14px;margin-top:16px}
.notices{margin:16px 0 0;padding:12px 18px 12px 34px;border-left:4px solid var(--bad);overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin:18px 0 0}
.tile{padding:12px 14px}.tile dt{color:var(--soft);font-size:13px}
.tile dd{margin:2px 0 0;font-size:21px;font-weight:600;line-height:1.25;font-variant-numeric:tabular-nums}
.tile small{display:block;font-size:12.5px;font-weight:400;color:var(--soft)}
.tile.good dd,span.good{color:var(--good)}.tile.bad dd,span.bad{color:var(--bad)}
.chart{display:block;width:100%;height:auto;margin-top:10px;overflow:visible}.narrow{display:none}
.chart text{font:12px system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--soft);font-variant-numeric:tabular-nums}
.chart .mid{text-anchor:middle}.chart .end{text-anchor:end}
.grid{stroke:var(--line)}.base{stroke:var(--base)}
.line{fill:none;stroke:var(--s);stroke-width:1.8;stroke-linejoin:round}.line.quiet{stroke-width:1;opacity:.7}
.line.ink{stroke-width:2.4}
.dot{fill:var(--card);stroke:var(--s);stroke-width:2}.hover{fill:transparent}.hover:hover{fill:var(--s)}
.bar{fill:var(--s)}.bar:hover{opacity:.8}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;list-style:none;margin:10px 0 0;padding:0;font-size:13.5px}
.legend li{display:flex;align-items:center;gap:6px}
.swatch{width:12px;height:12px;border-radius:3px;background:var(--s)}
.scroll{overflow-x:auto;margin-top:8px}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:6px 9px;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:500}tbody tr:last-child td{border-bottom:0}
th:first-child,td:first-child{padding-left:0}.number{text-align:right}
code{font:12.5px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
summary{cursor:pointer;margin-top:8px;color:var(--soft)}
.nothing{color:var(--soft)}
footer{margin-top:20px;font-size:13px;color:var(--soft)}
.facts{display:flex;flex-wrap:wrap;gap:4px 20px;margin:0}.facts div{display:flex;gap:6px}
.facts dd{margin:0;color:var(--ink);overflow-wrap:anywhere}
"""
    f"@media(max-width:{2 * NARROW.width - 120}px){{.wide{{display:none}}.narrow{{display:block}}"
    "main{padding:18px 10px 32px}section{padding:14px 12px 10px}}"
)
