"""The one error of a run that cannot go on: its message is a sentence with the cause and the fix; exit code 1."""


class RunFailed(RuntimeError):
    pass
