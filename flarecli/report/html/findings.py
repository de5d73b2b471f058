"""A result as a static HTML page without scripts; all text from data is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from flarecli.report.result import Result, bytes_of, shown
from flarecli.units import format_count, format_size

__all__ = ["findings_page"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --bad: light-dark(#b3261e, #ff8a80); --good: light-dark(#1b6e3c, #7ddc9f) }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2.5rem auto; padding: 0 1.25rem }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem } .bad { color: var(--bad) } .good { color: var(--good) }
.of, .counts, .hint { opacity: .75 } .of, td.where { overflow-wrap: anywhere }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .45rem .9rem .45rem 0; border-bottom: 1px solid var(--line) }
td.where { font-family: ui-monospace, monospace; font-size: .85rem; width: 38% } .hint { display: block; font-size: .9rem }
""".replace("\n", " ")


def findings_page(result: Result) -> str:
    """Return the result as HTML."""
    found, counts = result.counts["findings"], result.counts
    verdict, mood = (format_count(found, "finding"), "bad") if found else ("whole", "good")
    checked = [format_count(counts[f"{name}s"], name) for name in ("file", "shard", "row")]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>flare verify: {verdict}</title><style>{_STYLE}</style></head><body>",
        f'<h1 class="{mood}">{verdict}</h1>',
        f'<div class="of">{_text(" ".join(result.sources))}</div>',
        f'<div class="counts">{", ".join(checked)}, {format_size(counts["bytes"])}</div>',
    ]
    if result.findings:
        parts.append(
            '<h2>Findings</h2><table><tr><th scope="col">where</th><th scope="col">bytes</th><th scope="col">kind</th><th scope="col">what</th></tr>'
        )
        parts += [
            f'<tr><td class="where">{_text(one.where)}</td><td>{bytes_of(one).rpartition(" ")[2]}</td>'
            + f"<td>{_text(one.kind)}</td><td>{_text(one.message)}"
            + (f'<span class="hint">{_text(one.hint)}</span>' if one.hint else "")
            + "</td></tr>"
            for one in result.findings
        ]
        parts.append("</table>")
    parts += _list("Not protected", result.unprotected) + _list(
        "Not listed, not checked", result.extra
    )
    return "\n".join([*parts, "</body></html>", ""])


def _list(title: str, texts: Sequence[str]) -> list[str]:
    return (
        [f"<h2>{title}</h2><ul>", *(f"<li>{_text(text)}</li>" for text in texts), "</ul>"]
        if texts
        else []
    )


def _text(text: str) -> str:
    return escape(shown(text))
