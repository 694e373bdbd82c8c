"""Ready-made models: short, readable modules built from a feature description; see docs/zoo.md."""

from sparsefleet.zoo.autoint import AutoInt
from sparsefleet.zoo.ctr_dnn import CtrDnn
from sparsefleet.zoo.dcn_v2 import CrossLayers, DCNv2
from sparsefleet.zoo.deepfm import DeepFM
from sparsefleet.zoo.dien import DIEN, DienLoss, DienOutput
from sparsefleet.zoo.din import DIN
from sparsefleet.zoo.dlrm import DLRM
from sparsefleet.zoo.esmm import ESMM
from sparsefleet.zoo.inputs import FeatureRows, Tables
from sparsefleet.zoo.mmoe import MMoE
from sparsefleet.zoo.ple import PLE
from sparsefleet.zoo.sasrec import NextItemLoss, NextItems, SASRec
from sparsefleet.zoo.skip_gram import SkipGram
from sparsefleet.zoo.two_tower import InBatchSoftmax, Towers, TwoTower
from sparsefleet.zoo.wide_deep import WideDeep
from sparsefleet.zoo.xdeepfm import XDeepFM
from sparsefleet.zoo.youtube_dnn import YouTubeDNN

__all__ = [
    "AutoInt",
    "CrossLayers",
    "CtrDnn",
    "DCNv2",
    "DIEN",
    "DIN",
    "DLRM",
    "DeepFM",
    "DienLoss",
    "DienOutput",
    "ESMM",
    "FeatureRows",
    "InBatchSoftmax",
    "MMoE",
    "NextItemLoss",
    "NextItems",
    "PLE",
    "SASRec",
    "SkipGram",
    "Tables",
    "Towers",
    "TwoTower",
    "WideDeep",
    "XDeepFM",
    "YouTubeDNN",
]
