"""Apps as jobs of a Slurm cluster."""
