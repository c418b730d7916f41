"""torch.distributed.checkpoint directories of any script: ``step-N``, ``checkpoint_N``, ``iter-N`` and the like.

Order of a save: each rank's ``__RANK_FILE.distcp`` in place, a barrier, and then ``.metadata`` by rank 0. Without
``.metadata``, nothing can be loaded. A save into the same directory writes over the files in place.
"""

from __future__ import annotations

import re

from gangrun.frameworks.framework import Framework

FRAMEWORK = Framework(
    name="dcp",
    title="torch.distributed.checkpoint",
    names=re.compile(r"(?:(?:global_?)?step|checkpoint|iter|iteration|epoch|ckpt)[-_=]?(\d{1,18})"),
    stores_dcp=True,
)
