"""Why a pod waits, or where it is and what it has there."""
