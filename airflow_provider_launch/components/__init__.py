"""Ready-made apps: each public function returns one, and is found by its name, such as `dist.ddp`."""
