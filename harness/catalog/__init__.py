"""What a run is made of: suites, submissions and baselines from their files, and the request."""
