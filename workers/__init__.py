"""The workers that ship with the engine; importing this package registers their roles by name."""

from rlinf_async.execution.roles import register_role

register_role("render", "rlinf_async.workers.render:RenderWorker")
register_role("rollout", "rlinf_async.workers.rollout:RolloutWorker")
register_role("train", "rlinf_async.workers.train:TrainWorker")
register_role("gradient", "rlinf_async.workers.gradient:GradientWorker")
register_role("draw", "rlinf_async.workers.draw:DrawWorker")
register_role("evaluate", "rlinf_async.workers.evaluate:EvaluateWorker")
register_role("replay", "rlinf_async.workers.replay:ReplayWorker")
register_role("render_episodes", "rlinf_async.workers.render_episodes:EpisodeRenderWorker")
register_role("rollout_episodes", "rlinf_async.workers.rollout_episodes:EpisodeRolloutWorker")
register_role("train_episodes", "rlinf_async.workers.train_episodes:EpisodeTrainWorker")
register_role("probe", "rlinf_async.envs.registry:describe_env")
