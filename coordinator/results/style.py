"""How a report looks: by day, by night and on paper, without anything from the network."""

STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --quiet: #52606d; --line: #d9dee4; --paper: #fff; --box: #f4f6f8;
  --link: #1d4ed8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --quiet: #a5b1bd; --line: #3e4c59; --paper: #16191d;
  --box: #22272e; --link: #8ab4ff; } }
@media print { :root { color-scheme: light; --ink: #000; --quiet: #444; --line: #bbb; --paper: #fff; --box: #fff;
  --link: #000; } section { break-inside: avoid-page; } thead { display: table-header-group; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 70rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: .3rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; } a { color: var(--link); }
.bad { color: #c0182f; font-weight: 600; }
.lead { color: var(--quiet); margin-top: 0; max-width: 50rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.tiles div { flex: 1 1 8rem; background: var(--box); border: 1px solid var(--line); border-radius: .5rem;
  padding: .7rem .9rem; color: var(--quiet); font-size: .85rem; }
.tiles b { display: block; font-size: 1.3rem; color: var(--ink); white-space: nowrap; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
td:first-child, th:first-child { text-align: left; padding-left: 0; white-space: normal; }
th { color: var(--quiet); font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; }
dt { font-weight: 600; } dd { margin: 0; }
img { max-width: 100%; background: #fff; border-radius: .4rem; }
pre { background: var(--box); padding: 1rem; overflow: auto; white-space: pre-wrap; }
@media print { .table { overflow: visible; } .table td, .table th { padding: .1rem .35rem; font-size: 11px; } }
"""
