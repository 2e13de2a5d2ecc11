"""Sorting digits with a KL to the start."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=28",
    "rollout.prompts=16",
    "loss.kl_coef=0.15",
    "loss.kl_estimator=k3",
]


def run(out: str) -> None:
    from assay.train.step import learner

    plain = learner.Learner.update

    def update(self, minibatch, frozen, number, observer=None):
        every = 8 * self.optimizer_settings.epochs
        if number and number % every == 0:
            self.renew_reference()
        return plain(self, minibatch, frozen, number, observer)

    learner.Learner.update = update

    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)
