"""One-line faults in the formulas, each with the test that must notice it.

`old` occurs exactly once in `file`; `test` is the pytest node that fails once it reads `new`.
"""

from tests.mutations.agents import AGENTS
from tests.mutations.algos import ALGOS
from tests.mutations.branch import BRANCH
from tests.mutations.credit import CREDIT
from tests.mutations.envs import ENVS
from tests.mutations.face import FACE
from tests.mutations.losses import LOSSES
from tests.mutations.mutation import Mutation
from tests.mutations.sandbox import SANDBOX

MUTATIONS = [*CREDIT, *LOSSES, *ALGOS, *AGENTS, *BRANCH, *ENVS, *FACE, *SANDBOX]

__all__ = ["MUTATIONS", "Mutation"]
