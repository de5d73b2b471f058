"""A verification result as a static HTML page without scripts. All text from data is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flarecli.report.result import Result, byte_range, html_text
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
    total, counts = result.counts["findings"], result.counts
    verdict, style = (format_count(total, "finding"), "bad") if total else ("whole", "good")
    checked = [format_count(counts[f"{name}s"], name) for name in ("file", "shard", "row")]
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>flare verify: {verdict}</title><style>{_STYLE}</style></head><body>",
        f'<h1 class="{style}">{verdict}</h1>',
        f'<div class="of">{html_text(" ".join(result.sources))}</div>',
        f'<div class="counts">{", ".join(checked)}, {format_size(counts["bytes"])}</div>',
    ]
    if result.findings:
        heads = "".join(
            f'<th scope="col">{name}</th>' for name in ("place", "bytes", "kind", "message")
        )
        lines.append(f"<h2>Findings</h2><table><tr>{heads}</tr>")
        for finding in result.findings:
            hint = f'<span class="hint">{html_text(finding.hint)}</span>' if finding.hint else ""
            lines.append(
                f'<tr><td class="where">{html_text(finding.where)}</td>'
                f"<td>{byte_range(finding).rpartition(' ')[2]}</td><td>{html_text(finding.kind)}</td>"
                f"<td>{html_text(finding.message)}{hint}</td></tr>"
            )
        lines.append("</table>")
    lines += _list("Files without checksums", result.unprotected)
    lines += _list("Not listed, not checked", result.extra)
    return "\n".join([*lines, "</body></html>", ""])


def _list(title: str, texts: Sequence[str]) -> Iterator[str]:
    if texts:
        yield f"<h2>{title}</h2><ul>"
        yield from (f"<li>{html_text(text)}</li>" for text in texts)
        yield "</ul>"
