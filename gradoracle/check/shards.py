"""Shards: what the report of one shard carries, so that the reports of all shards add up to that of the whole run."""

from __future__ import annotations

from gradoracle.check.plan import Plan
from gradoracle.check.repeat_command import asked, repeated
from gradoracle.check.totals import Totals
from gradoracle.check.usable_case import sizes_wanted
from gradoracle.model.shard import Shard
from gradoracle.project.provenance import provenance


def shard_of(plan: Plan, totals: Totals) -> Shard | None:
    """What the report of a shard carries; None for a whole run."""
    subjects, request = plan.subjects, plan.subjects.request
    if request.shard == (1, 1):
        return None
    own = provenance(subjects.functions, request.target)
    return Shard(
        *request.shard,
        asked(request),
        plan.digest,
        len(plan.whole),
        own.files,
        own.packages,
        request.require,
        tuple(law.name for law in subjects.laws.values() if law.decisive),
        {name: repeated(request, subjects.place(name), subjects.device, shard=(1, 1)) for name in subjects.kernels},
        sizes_wanted(subjects.family),
        totals.first,
        {str(place): sentence for place, sentence in totals.undefined.items()},
        tuple(totals.aggregate.sums.values()),
    )
