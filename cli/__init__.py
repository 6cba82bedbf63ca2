"""The command `ckv`: every command, those of saved runs and studies included."""
