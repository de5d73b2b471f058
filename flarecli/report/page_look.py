"""How the page of a dataset looks and acts: one style, one script, and the policy that lets those two in and nothing else."""

from __future__ import annotations

import base64
import hashlib

__all__ = ["POLICY", "SCRIPT", "STYLE"]

STYLE = """
:root{color-scheme:light dark;--ink:#1c1e21;--soft:#676d75;--line:#e3e5e8;--page:#fbfbfa;--card:#fff;--accent:#2f6f8f;--bar:#8fb6c9;--warn:#c98a3b}
@media(prefers-color-scheme:dark){:root{--ink:#e6e7e9;--soft:#9aa1aa;--line:#2d3136;--page:#141618;--card:#1b1e21;--accent:#86c1dc;--bar:#3f7690;--warn:#b07a36}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
main{max-width:76rem;margin:0 auto;padding:3rem 1.5rem 5rem}
h1{font-size:1.45rem;font-weight:600;line-height:1.3;margin:0;overflow-wrap:anywhere;letter-spacing:-.01em}
h2{font-size:1.05rem;font-weight:600;margin:3rem 0 .9rem}
h2 small,.soft{color:var(--soft);font-weight:400;font-size:.87rem}
.facts{display:flex;flex-wrap:wrap;gap:1rem 2.75rem;margin:1.6rem 0 0;padding:0}
.facts dt{color:var(--soft);font-size:.82rem}.facts dd{margin:0;font-size:1.2rem;font-variant-numeric:tabular-nums}
.wide{overflow-x:auto}
.holes{margin:1.1rem 0;padding:.7rem 1.1rem .7rem 2.2rem;border:1px solid var(--warn);border-radius:8px;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;vertical-align:top;padding:.45rem 1.2rem .45rem 0;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
th{color:var(--soft);font-weight:500;white-space:nowrap}
td.n,th.n,td code{white-space:nowrap}td:first-child{min-width:7rem}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
code,.mono{font:.86em/1.5 ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace}
.facts+.plots{margin-top:1.4rem}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(17rem,1fr));gap:1.1rem}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.9rem 1rem .8rem;min-width:0}
figcaption{font-weight:500;overflow-wrap:anywhere;margin-bottom:.6rem}
svg{display:block;width:100%;height:5.5rem}svg rect{fill:var(--bar)}svg rect:hover{fill:var(--accent)}
.ends{display:flex;justify-content:space-between;gap:1rem;border-top:1px solid var(--line);padding-top:.35rem;font-variant-numeric:tabular-nums}
.tools{display:flex;flex-wrap:wrap;gap:.7rem;align-items:center;margin-bottom:1.1rem}
input,select,button{font:inherit;color:inherit;background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.4rem .7rem}
input{flex:1 1 16rem;max-width:28rem}:focus-visible{outline:2px solid var(--accent);outline-offset:1px}
#gallery{display:grid;grid-template-columns:repeat(auto-fill,minmax(15rem,1fr));gap:1.1rem;align-items:start}
.row{background:var(--card);border:1px solid var(--line);border-radius:8px;overflow:hidden}
.row[hidden]{display:none}
.row img{display:block;width:100%;height:12rem;object-fit:contain;background:color-mix(in srgb,var(--line) 45%,transparent)}
.row audio{display:block;width:calc(100% - 1.5rem);margin:.75rem}
.row p{margin:0;padding:.6rem 1rem 0}
.row dl{margin:0;padding:.35rem 1rem .9rem;font-size:.89rem}
.row dl{display:grid;grid-template-columns:fit-content(45%) 1fr;gap:.3rem .8rem;align-items:baseline}
.row dt{color:var(--soft);font-size:.82rem;overflow-wrap:anywhere}.row .long{grid-column:1/-1}.row dd.long{margin-top:-.25rem}
.row dd{margin:0;overflow-wrap:anywhere;max-height:9.5rem;overflow-y:auto;white-space:pre-wrap}
footer{margin-top:4rem;color:var(--soft);font-size:.83rem}
""".replace("\n", "")

SCRIPT = """
"use strict";
const gallery=document.getElementById("gallery");
if(gallery){
 const rows=[...gallery.children],find=document.getElementById("find"),by=document.getElementById("by");
 const turn=document.getElementById("turn"),count=document.getElementById("count");
 const texts=rows.map(row=>row.textContent.toLowerCase());
 const look=()=>{let shown=0;const words=find.value.toLowerCase().split(/\\s+/).filter(Boolean);
  rows.forEach((row,i)=>{row.hidden=!words.every(word=>texts[i].includes(word));shown+=!row.hidden});count.textContent=shown+" of "+rows.length};
 const key=row=>{const cell=by.value===""?null:row.querySelector('[data-column="'+by.value+'"]');
  const text=cell?cell.dataset.value??cell.textContent:row.dataset.row;const number=Number(text);return text===""||Number.isNaN(number)?text:number};
 const order=(a,b)=>{const x=key(a),y=key(b);
  if(typeof x===typeof y)return typeof x==="number"?x-y:x.localeCompare(y);return typeof x==="number"?-1:1};
 const sort=()=>{const sign=turn.getAttribute("aria-pressed")==="true"?-1:1;
  gallery.append(...rows.slice().sort((a,b)=>sign*order(a,b)))};
 find.addEventListener("input",look);by.addEventListener("change",sort);
 turn.addEventListener("click",()=>{turn.setAttribute("aria-pressed",String(turn.getAttribute("aria-pressed")!=="true"));sort()});
 look();
}
"""


def _sum(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


POLICY = f"default-src 'none'; style-src '{_sum(STYLE)}'; script-src '{_sum(SCRIPT)}'; img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
