"""The trusted half: owns the secret, the inputs, the references, the verdict and the second clock."""
