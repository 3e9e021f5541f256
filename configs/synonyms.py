"""The names that other programs have for our keys and values. Imports nothing: command lines are read before set-up."""

_KEYS_BY_NAME = {
    "schedule.base_lr": "lr learning_rate max_lr peak_lr",
    "schedule.warmup_epochs": "warmup warm_up",
    "schedule.decay.name": "decay lr_decay lr_scheduler lr_schedule",
    "batch.global_size": "batch batch_size batchsize bs global_batch_size train_batch_size minibatch",
    "batch.accumulation_steps": "accumulation accumulate grad_accum gradient_accumulation_steps accum_iter",
    "run.epochs": "epoch epochs num_epochs n_epochs max_epochs",
    "run.target_top1": "target target_accuracy accuracy acc top1",
    "run.seed": "seed random_seed",
    "run.max_steps": "num_steps iterations iters max_iter",
    "run.log_every_steps": "log_interval log_every log_freq print_freq",
    "run.eval_every_epochs": "eval_every eval_interval val_interval val_freq",
    "optimizer.name": "opt optim",
    "optimizer.weight_decay": "wd l2",
    "optimizer.momentum": "momentum beta1 beta_1",
    "optimizer.beta_2": "beta2",
    "model.name": "model arch network net backbone",
    "model.parameters": "pretrained weights init_weights",
    "model.frozen": "freeze frozen_layers freeze_layers freeze_backbone",
    "model.num_classes": "classes nclasses num_labels",
    "model.image_size": "size img_size imgsz input_size resolution",
    "model.input_channels": "channels in_channels",
    "model.stochastic_depth": "drop_path drop_path_rate stochastic_depth_prob",
    "optimizer.clip_norm": "clip_grad clip_grad_norm max_grad_norm gradient_clip_val grad_clip",
    "data.name": "dataset data_set",
    "data.crop.kind": "crop augment augmentation aug",
    "data.flip": "hflip",
    "cluster.ranks_per_node": "gpus num_gpus ngpus ranks num_ranks nproc nproc_per_node processes world_size np",
    "cluster.num_nodes": "nodes nnodes machines",
    "cluster.engine.input_threads": "workers num_workers data_workers",
    "cluster.engine.precision": "precision dtype amp fp16 bf16 half mixed_precision",
    "cluster.engine.name": "engine framework",
    "cluster.engine.threads": "threads num_threads",
    "cluster.device": "device cuda gpu",
    "cluster.scheduler.queue": "partition queue",
    "cluster.scheduler.wall_time_s": "time walltime time_limit",
    "cluster.paths.data": "data data_dir data_path data_root",
    "cluster.paths.runs": "out output output_dir out_dir save_dir",
    "cluster.checkpoint.every_epochs": "save_every save_freq checkpoint_every",
}
"""Key -> names for it in other programs, with underscores."""

SYNONYMS = {name: key for key, names in _KEYS_BY_NAME.items() for name in names.split()}
"""Name of another program, in small letters with underscores -> key."""

RECIPE_SYNONYMS = {"lars-v30-b57344": "nvidia-v30-n448"}
"""Second name of a recipe, by optimizer, round and batch -> its name."""


def synonym(word: str) -> str | None:
    """Return the key that other programs call ``word``, written in whatever way; None if none is known."""
    return SYNONYMS.get(word.strip("-").lower().replace("-", "_").replace(" ", "_"))
