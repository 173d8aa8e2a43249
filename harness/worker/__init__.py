"""The untrusted half: imports a submission, calls it, says how long it took. Nothing here is believed."""
