"""Python functions of a DAG file as distributed apps: `function_app(train, args, kwargs, image=...)`."""

from airflow_provider_launch.functions.app import function_app
from airflow_provider_launch.functions.program import Replica
from airflow_provider_launch.functions.result import value_of

__all__ = ["Replica", "function_app", "value_of"]
