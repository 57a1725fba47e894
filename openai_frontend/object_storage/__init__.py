"""Copies model repositories from S3, Google Cloud Storage and Azure to a local folder."""
