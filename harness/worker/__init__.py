"""The untrusted half: imports a submission, calls it, times it. Nothing here is believed."""
