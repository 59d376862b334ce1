"""What to try with a model that is of little use: said where its figures show it."""

from service.learning.learner import Learner


def advice(learner: Learner) -> dict[str, str]:
    """A line for each thing that is wrong with it, by a name that stays the same while the figures change.

    >>> from service.learning.identity import Identity
    >>> learner = Learner(Identity())
    >>> learner.begin({0: 0})
    >>> _ = learner.apply(0, 0, [b"no event"])
    >>> advice(learner)["rejected"]
    'more than half of its records, 1 of 1, were rejected: send events, or set what the model is to read'
    """
    found = {}
    recent = learner.watch.recent
    accuracy = recent.average_accuracy if learner.watch.options.serve == "average" else recent.accuracy
    if recent.full and accuracy is not None and recent.baseline is not None and accuracy < recent.baseline:
        found["accuracy"] = (
            f"of the last {recent.window:,} predictions {accuracy:.1%} were right, and always the more frequent label "
            f"would have been in {recent.baseline:.1%}: try {_tries(learner)}"
        )
    rejected, events = sum(learner.counts.rejected.values()), learner.counts.events
    if rejected > events:
        found["rejected"] = (
            f"more than half of its records, {rejected:,} of {rejected + events:,}, were rejected: send events, or set "
            "what the model is to read"
        )
    return found


def _tries(learner: Learner) -> str:
    identity, options, recent = learner.identity, learner.watch.options, learner.watch.recent
    if identity.rule == "threshold-unit":
        return "other weights, since these are given and never change"
    tries = []
    if not identity.average:
        tries.append('average = "recent" with serve = "average"')
    elif options.serve == "last" and (recent.average_accuracy or 0.0) > (recent.accuracy or 0.0):
        tries.append(f'serve = "average", which was right in {recent.average_accuracy:.1%}')
    if identity.rule != "logistic-delta":
        tries.append('rule = "logistic-delta"')
    return ", ".join([*tries, "or values of like size, such as standardised ones"])
