"""Builtin components: each public function returns an app, and has a name such as `dist.ddp`."""
