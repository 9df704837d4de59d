"""A pipeline from a file: fetch the pages of the documentation, split them, count their words in a map, report.

The steps are in launch_pipeline.yaml, and the functions that they call in launch_pipeline_steps.py.
"""

from __future__ import annotations

# Airflow reads only files with the words "airflow" and "dag".
from airflow_provider_launch.pipelines import dag_from_file

dag = dag_from_file("launch_pipeline.yaml", doc_md=__doc__, tags=["launch", "example"])
