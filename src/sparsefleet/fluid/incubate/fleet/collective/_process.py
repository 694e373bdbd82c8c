"""The one fleet object of this process for collective training."""

from sparsefleet.fluid.incubate.fleet.collective.collective_fleet import Collective

fleet = Collective()
