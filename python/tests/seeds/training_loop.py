# SPDX-License-Identifier: Apache-2.0
"""Seed 001, 2.1: the animal classifier, started by notebook_launcher. A small network takes the place of timm's."""

import sys

import torch
from common import Pictures, report, weights_of
from torch.optim.lr_scheduler import OneCycleLR

from lockstep import Accelerator, notebook_launcher
from lockstep.utils import set_seed

label_to_id = {f"animal {index}": index for index in range(10)}
SIZES = (640, 203)  # 203: not a whole number of batches.


def get_dataloaders(batch_size: int = 64):
    train, test = Pictures(SIZES[0], train=True), Pictures(SIZES[1], train=False)
    train_dataloader = torch.utils.data.DataLoader(train, shuffle=True, batch_size=batch_size)
    eval_dataloader = torch.utils.data.DataLoader(test, shuffle=False, batch_size=batch_size * 2)
    return train_dataloader, eval_dataloader


class SmallNet(torch.nn.Module):
    default_cfg = {"mean": (0.29, 0.29, 0.29), "std": (0.35, 0.35, 0.35)}

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 5, stride=3), torch.nn.ReLU(), torch.nn.Flatten())
        self.classifier = torch.nn.Linear(8 * 8 * 8, num_classes)

    def get_classifier(self) -> torch.nn.Module:
        return self.classifier

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(inputs))


def create_model(name: str, pretrained: bool, num_classes: int) -> SmallNet:
    return SmallNet(num_classes)


def training_loop(mixed_precision="fp16", seed: int = 42, batch_size: int = 64):
    set_seed(seed)
    # 初始化 accelerator
    accelerator = Accelerator(mixed_precision=mixed_precision)
    # 构建dataloaders,具体步骤省略
    train_dataloader, eval_dataloader = get_dataloaders(batch_size)
    # 实例化模型(在这里构建模型，以便种子也可以控制权重初始化)
    model = create_model("resnet50d", pretrained=True, num_classes=len(label_to_id))

    # 冻结基础模型
    for param in model.parameters():
        param.requires_grad = False
    for param in model.get_classifier().parameters():
        param.requires_grad = True

    # 对图像批处理进行标准化，以加速训练。为了在活动设备上使用这些常量，将它们设置为加速器设备
    mean = torch.tensor(model.default_cfg["mean"])[None, :, None, None]
    std = torch.tensor(model.default_cfg["std"])[None, :, None, None]
    mean = mean.to(accelerator.device)
    std = std.to(accelerator.device)

    # 实例化optimizer和scheduler
    optimizer = torch.optim.Adam(params=model.parameters(), lr=3e-2 / 25)
    lr_scheduler = OneCycleLR(optimizer=optimizer, max_lr=3e-2, epochs=5, steps_per_epoch=len(train_dataloader))

    # There is no specific order to remember, you just need to unpack the objects in the same order you gave them to the
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )

    frozen = weights_of(model.features)
    metrics, counts = [], []
    # 开始训练
    for epoch in range(5):
        model.train()
        for batch in train_dataloader:
            inputs = (batch["image"] - mean) / std
            outputs = model(inputs)
            loss = torch.nn.functional.cross_entropy(outputs, batch["label"])
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()

        model.eval()
        # 传递的元素数量以及每个批次的总体准确率将添加到两个常量中
        accurate = 0
        num_elems = 0
        for batch in eval_dataloader:
            inputs = (batch["image"] - mean) / std
            with torch.no_grad():
                outputs = model(inputs)
            predictions = outputs.argmax(dim=-1)
            accurate_preds = accelerator.gather(predictions) == accelerator.gather(batch["label"])
            num_elems += accurate_preds.shape[0]
            accurate += accurate_preds.long().sum()

        eval_metric = accurate.item() / num_elems
        # 使用 accelerator.print 只在主进程上打印
        accelerator.print(f"epoch {epoch}: {100 * eval_metric:.2f}")
        metrics.append(eval_metric)
        counts.append(num_elems)

    report(
        accelerator.process_index,
        metrics=metrics,
        counts=counts,
        processes=accelerator.num_processes,
        precision=accelerator.mixed_precision,
        loss_scale=getattr(accelerator, "loss_scale", None),
        rate=lr_scheduler.get_last_lr()[0],
        frozen=frozen == weights_of(model.features),
        weights=weights_of(model),
    )


if __name__ == "__main__":
    precision, processes = sys.argv[2], int(sys.argv[3])
    args = (precision, 42, 64)
    notebook_launcher(training_loop, args, num_processes=processes, use_port=0)
