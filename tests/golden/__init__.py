"""What every method kept and wrote, recorded once; a change of the engine's shape changes none."""
