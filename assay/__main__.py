from assay.cli import app

app()
