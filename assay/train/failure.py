"""The one error of a run that cannot go on."""

from assay.machine.user_error import UserError


class RunFailed(UserError, RuntimeError):
    exit_code = 1
