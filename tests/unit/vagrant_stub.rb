# frozen_string_literal: true

# Reads a Vagrantfile without Vagrant: prints what it sets for the provider named second, as JSON.
require "json"

PROVIDER = ARGV[1]

# Takes whatever it is told: attributes become keys, other calls become lists of their arguments.
class Recorder
  attr_reader :said

  def initialize
    @said = {}
  end

  def vm
    self
  end

  def provider(name, &block)
    return unless name == PROVIDER

    settings = Recorder.new
    block.arity == 2 ? block.call(settings, self) : block.call(settings)
    said["provider"] = settings.said
  end

  def define(name, **options, &block)
    machine = Recorder.new
    block.call(machine)
    (said["machines"] ||= {})[name] = machine.said.merge(options)
  end

  def respond_to_missing?(*)
    true
  end

  def method_missing(name, *arguments, **options)
    if name.end_with?("=")
      said[name.to_s.delete_suffix("=")] = arguments.first
    else
      (said[name.to_s] ||= []) << [*arguments, options]
    end
  end
end

module Vagrant
  def self.configure(_version)
    config = Recorder.new
    yield config
    puts JSON.generate(config.said)
  end
end

load ARGV[0]
