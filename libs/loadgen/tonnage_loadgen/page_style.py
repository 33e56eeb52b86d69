"""The report page's style sheet: light and dark, series colours that differ for colour-blind readers too."""

STYLE = """
:root{--bg:#fff;--ink:#1b1f24;--dim:#5d6570;--rule:#dfe3e8;--void:#b3261e;
--c0:#0b62c4;--c1:#c2570c;--c2:#1a7f4b;--c3:#8a3ffc;--c4:#a8790a;--c5:#b0246f}
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--ink:#e8eaed;--dim:#9aa3ae;--rule:#2c323a;--void:#ff8a80;
--c0:#6cb0ff;--c1:#ffa05a;--c2:#5fd093;--c3:#c3a0ff;--c4:#e6bd4f;--c5:#ff8fc4}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1200px;margin:0 auto;padding:24px 16px 60px}h1{font-size:24px;margin:0}
h2{font-size:17px;margin:28px 0 8px}
.sub{color:var(--dim);margin:2px 0 16px}
.void{border:2px solid var(--void);color:var(--void);padding:8px 12px;font-weight:600}
.legend span{margin-right:18px}
.legend i{display:inline-block;width:18px;height:4px;margin-right:6px;vertical-align:middle}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:3px 18px 3px 0;border-bottom:1px solid var(--rule);text-align:right;white-space:nowrap}
tbody th{text-align:left;font-weight:400;color:var(--dim)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,360px),1fr));gap:16px}
figure{margin:0}figcaption{color:var(--dim);font-size:13px}svg{width:100%;height:auto}
svg text{font:11px system-ui,sans-serif;fill:var(--dim)}.grid{stroke:var(--rule);stroke-width:1}
.line{fill:none;stroke-width:2;stroke-linejoin:round}.none{color:var(--dim)}
.s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}.s4{stroke:var(--c4)}.s5{stroke:var(--c5)}
i.s0{background:var(--c0)}i.s1{background:var(--c1)}i.s2{background:var(--c2)}i.s3{background:var(--c3)}
i.s4{background:var(--c4)}i.s5{background:var(--c5)}
"""
