"""One page that shows a run, down to the token, and can be mailed.

    opened.py     a path -> evidence, verdict, settings
    curves.py     metrics -> charts -> SVG (chart.py)
    groups.py     batches -> completions and the numbers of their tokens
    page.py       all of it -> one HTML file with page.css, page.js and its data as JSON
    compare.py    several runs; live.py: a run that goes on; notebook.py: a run in Jupyter

Nothing here imports torch.
"""
