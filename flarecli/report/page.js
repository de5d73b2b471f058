"use strict";
const gallery=document.getElementById("gallery");
if(gallery){
 const rows=[...gallery.children],find=document.getElementById("find"),by=document.getElementById("by");
 const turn=document.getElementById("turn"),count=document.getElementById("count");
 const texts=rows.map(row=>row.textContent.toLowerCase());
 const look=()=>{let shown=0;const words=find.value.toLowerCase().split(/\s+/).filter(Boolean);
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
