"""The processes: worker, runner, supervisor, dispatcher."""
