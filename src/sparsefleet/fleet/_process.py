"""The fleet object of this process, and its methods as functions."""

from sparsefleet.fleet.fleet import Fleet

fleet = Fleet()

all_gather = fleet.all_gather
barrier_worker = fleet.barrier_worker
begin_pass = fleet.begin_pass
distribute = fleet.distribute
end_pass = fleet.end_pass
evaluating = fleet.evaluating
init = fleet.init
init_server = fleet.init_server
init_worker = fleet.init_worker
is_first_worker = fleet.is_first_worker
is_server = fleet.is_server
is_worker = fleet.is_worker
open_exchange = fleet.open_exchange
publish_rows = fleet.publish_rows
run_server = fleet.run_server
save_inference_model = fleet.save_inference_model
save_persistables = fleet.save_persistables
server_endpoints = fleet.server_endpoints
server_index = fleet.server_index
server_num = fleet.server_num
settle = fleet.settle
sharding = fleet.sharding
split_files = fleet.split_files
step = fleet.step
stop_worker = fleet.stop_worker
worker_endpoints = fleet.worker_endpoints
worker_index = fleet.worker_index
worker_num = fleet.worker_num
