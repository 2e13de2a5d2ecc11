"""What cannot be imported here is not collected: kernels need Triton, which has no wheels for some platforms."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["assay/kernels/*.py", "assay/engine/cuda*.py"]
