"""One component."""

from __future__ import annotations

from torchx import specs


def greet(
    *names: str, greeting: str = "hello", copies: int = 1, h: str = "acme.small", env: dict[str, str] | None = None
) -> specs.AppDef:
    """Greet everybody.

    Args:
        names: who is greeted
        greeting: how
        copies: by how many
        h: a named resource
        env: variables
    """
    return specs.AppDef(
        name="greet",
        roles=[
            specs.Role(
                name="greeter",
                image="acme/greeter:1",
                entrypoint="sh",
                args=["-c", f"echo {greeting} {' '.join(names)} from {specs.macros.replica_id} on $LANE"],
                env=env or {},
                num_replicas=copies,
                resource=specs.resource(h=h),
                metadata={"acme": {"id": specs.macros.app_id}},
            )
        ],
    )
