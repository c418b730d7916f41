"""gangrun as an executor of submitit: a function runs on every rank of a run that survives failures.

``submitit.AutoExecutor(folder, cluster="gangrun")`` finds it by its entry points; ``GangExecutor(folder)`` is the same
by name. A job of submitit is a run of gangrun: its id is the run's, it may live through several jobs of the scheduler,
and it is done when the run has ended. The run is submitted as ``gangrun submit`` does it, or begins on this machine if
no scheduler is installed.

After a failure the function begins anew on every rank. A callable with a ``checkpoint`` method (submitit's
``Checkpointable``) says what to run instead: rank 0 asks it whenever gangrun stops the ranks and they may save.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gangrun.config import environment
from gangrun.launch.executor import FunctionExecutor, GangJob, GangJobEnvironment

if TYPE_CHECKING:
    from gangrun.adapters.fs.run_dir import RunPaths

__all__ = ["GangExecutor", "GangJob", "GangJobEnvironment"]


class GangExecutor(FunctionExecutor):
    """Runs functions on all ranks of a run.

    Args:
        folder: Where submitit keeps pickles and results; all nodes must see it.
        here: Run on this machine (True), or on the cluster (False); by default on the cluster if one can be asked.
        max_num_timeout: Not used: a run goes on until its function returns, or gangrun gives it up.
        max_pickle_size_gb: As submitit has it.

    Parameters for ``update_parameters`` are submitit's (``nodes``, ``tasks_per_node``, ``timeout_min``, ``mem_gb``,
    ``cpus_per_task``, ``gpus_per_node``, ``name``) and every setting of gangrun by name, such as ``spares``,
    ``max_restarts`` or ``checkpoint_dir``; ``AutoExecutor`` wants ``gangrun_`` before these.
    """

    def submit_run(self, words: Sequence[str], flags: Mapping[str, Any], env_pairs: Sequence[str]) -> RunPaths:
        """Submit a run that executes ``words`` on its ranks, in this process."""
        from gangrun.config.request import Request, resolved  # noqa: PLC0415 - ranks load this module too
        from gangrun.launch.slurm_submit import submit  # noqa: PLC0415

        request = Request(tuple(words), flags=flags, env_pairs=tuple(env_pairs), submits=True)
        return submit(resolved(request, environment.all_variables()), say=False)
