"""Components."""

import sys

from torchx import specs
from torchx.components.component_test_base import ComponentTestCase
from torchx.specs.api import macros


def train(epochs: int, name: str = "train", replicas: int = 2, h: str = "acme_small") -> specs.AppDef:
    """Train.

    Args:
        epochs: how often
        name: of the app
        replicas: how many
        h: named resource of each
    """
    return specs.AppDef(
        name,
        roles=[
            specs.Role(
                name="trainer",
                image="any",
                entrypoint=sys.executable,
                args=["-m", "acme.program", "--epochs", str(epochs), "--replica", macros.replica_id],
                num_replicas=replicas,
                resource=specs.resource(h=h),
                env={"ROOM": specs.resource(h=h).tags["room"]},
            )
        ],
    )


def wait() -> specs.AppDef:
    """Wait until it is cancelled."""
    role = specs.Role("main", image="any", entrypoint="sleep", args=["600"], resource=specs.resource(h="acme_small"))
    return specs.AppDef("wait", [role])


class ComponentTest(ComponentTestCase):
    """The tests of the package."""

    def test_train(self) -> None:
        self.validate(sys.modules[__name__], "train")
        self.validate(sys.modules[__name__], "wait")
