"""Launch distributed apps on any scheduler, from Airflow or from plain Python."""

__version__ = "0.1.0"


def __getattr__(name: str) -> str:
    # `settings` needs the version from this module.
    if name == "IMAGE":
        from airflow_provider_launch.settings import IMAGE

        return IMAGE
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
