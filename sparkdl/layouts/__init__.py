"""Models that are split over several ranks: where each rank's part lies in the whole, and one file per plan."""

from sparkdl.layouts.block_edges import is_entered, is_left
from sparkdl.layouts.cuts import Cuts
from sparkdl.layouts.expert_parallel import ExpertParallel, ExpertPlan, find_experts
from sparkdl.layouts.front import computes_by_row
from sparkdl.layouts.graph_stage import GraphStage, answer_by_stages, input_names
from sparkdl.layouts.grid_parts import GridParts, GridPlan
from sparkdl.layouts.moments import fill_with_moments, moments_by_name, names_in, put_moments, with_room
from sparkdl.layouts.network_graph import NetworkGraph, bytes_of, trace
from sparkdl.layouts.part_alone import Alone, exchanged_bytes, part_alone
from sparkdl.layouts.pipeline_plan import PipelinePlan, find_stages, has_pipelines
from sparkdl.layouts.regions import ModelPart, Parting, Region, Regions, Slices, fill, is_moment, room_for, weights_in
from sparkdl.layouts.stage_parts import StageParts
from sparkdl.layouts.tensor_parallel import TensorParallel, cut
from sparkdl.layouts.tensor_plan import CutBlock, TensorPlan, find_plan
from sparkdl.layouts.units import check_may_be_sharded

SharingPlan = TensorPlan | PipelinePlan | GridPlan | ExpertPlan
"""A plan by which the ranks of a replica share a network."""

__all__ = [
    "Alone",
    "CutBlock",
    "Cuts",
    "ExpertParallel",
    "ExpertPlan",
    "GraphStage",
    "GridParts",
    "GridPlan",
    "ModelPart",
    "NetworkGraph",
    "Parting",
    "PipelinePlan",
    "Region",
    "Regions",
    "SharingPlan",
    "Slices",
    "StageParts",
    "TensorParallel",
    "TensorPlan",
    "answer_by_stages",
    "bytes_of",
    "check_may_be_sharded",
    "computes_by_row",
    "cut",
    "exchanged_bytes",
    "fill",
    "fill_with_moments",
    "find_experts",
    "find_plan",
    "find_stages",
    "has_pipelines",
    "input_names",
    "is_entered",
    "is_left",
    "is_moment",
    "moments_by_name",
    "names_in",
    "part_alone",
    "put_moments",
    "room_for",
    "trace",
    "weights_in",
    "with_room",
]
