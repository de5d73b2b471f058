"""Objects in S3, GCS and Azure, through obstore."""
