"""Names that the server and its clients share."""

ACCOUNT, REGION = "123456789012", "us-east-1"
QUEUE, OTHER_QUEUE = "launch-queue", "launch-other"
GROUP = "/aws/batch/job"
CONTROL = "/launch-engine"
