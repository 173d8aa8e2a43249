"""The judge and the workers, as the engine knows them."""
