"""Apps as jobs of AWS Batch."""
