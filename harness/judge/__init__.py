"""The trusted half: owns the secret, inputs, references, verdict and second clock."""
